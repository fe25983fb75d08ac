"""The vocabulary that everything shares: values, parameters, interfaces, errors, configuration."""

"""The shared vocabulary: values, parameters, interfaces, errors, configuration."""

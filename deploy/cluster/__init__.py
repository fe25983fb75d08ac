"""What a cluster of machines needs besides the pipeline: certificates, environment, AWS."""

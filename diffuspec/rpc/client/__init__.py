"""The client side: remote roles with the interfaces of local ones."""

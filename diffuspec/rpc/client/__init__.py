"""The calling side: remote roles behind the interfaces of local ones."""

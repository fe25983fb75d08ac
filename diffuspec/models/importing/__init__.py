"""Model directories made from files of other formats."""

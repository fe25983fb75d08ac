"""Creates model directories from files of other formats."""

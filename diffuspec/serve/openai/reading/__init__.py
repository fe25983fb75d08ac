"""Reading answers as they arrive: reasoning, content and calls, in the forms that models write."""

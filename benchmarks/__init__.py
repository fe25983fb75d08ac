"""What only we run: long tests of a service, on the checkout."""

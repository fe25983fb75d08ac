"""The roles as actor classes: plain Python. `placement` applies `ray.remote` to them."""

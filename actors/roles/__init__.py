"""The roles as actor classes: plain Python, `ray.remote` is applied in `placement`."""

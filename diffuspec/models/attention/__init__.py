"""Attention of packed rows over our own key-value cache."""

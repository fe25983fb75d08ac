"""Draft heads: small networks that guess the next tokens from the target's hidden states."""

"""The paper as pure functions: lattice, path search, draft trees, acceptance, sampling."""

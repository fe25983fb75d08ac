"""The paper's ablations and sweeps, and what pre-drafting gains."""

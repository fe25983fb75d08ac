"""Operations of a CPU over the rows of a forward, compiled on installation."""

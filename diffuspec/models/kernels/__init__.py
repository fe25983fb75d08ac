"""Operations on the rows of a forward: C++ for CPUs, compiled on installation, and Triton."""

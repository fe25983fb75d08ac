"""`diffuspec bench --sizes`: what models of given sizes cost on this machine, without weights."""

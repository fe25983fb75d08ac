"""Control learnt while decoding: draft lengths, costs, calibration, likely outcomes."""

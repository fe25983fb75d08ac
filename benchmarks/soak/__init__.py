"""A service under mixed load for minutes: right answers, level memory, nothing left over."""

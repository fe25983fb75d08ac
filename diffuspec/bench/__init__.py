"""The benchmark: question files, interleaved runs, statistics, reports and plots."""

"""Where range work runs: plans of plain tasks, in this process or on Spark."""

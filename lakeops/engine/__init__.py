"""Where work runs: plain tasks, in threads of this process or on Spark."""

"""What the experiments share: config, measuring, tracking, tables."""

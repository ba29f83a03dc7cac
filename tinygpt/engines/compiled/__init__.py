"""The compiled engine (engine.py), what it compiles (step.py, tiles.py), and how (packages.py)."""

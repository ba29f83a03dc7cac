"""The compiled engine (engine.py), the code that it compiles (step.py, tiles.py) and keeps."""

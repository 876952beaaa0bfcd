"""``python -m holdfast`` is the command."""

from holdfast.cli import main

if __name__ == "__main__":
    main(prog_name="holdfast")

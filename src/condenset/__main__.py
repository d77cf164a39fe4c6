"""Run the command line with `python -m condenset`."""

from condenset.cli import main

if __name__ == "__main__":
    main()

"""`python -m repflow`: the command line."""

from repflow.cli.main import main

if __name__ == "__main__":
    main()

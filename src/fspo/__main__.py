"""`python -m fspo` is the `fspo` command."""

from fspo.cli.main import main

if __name__ == "__main__":
    main()

"""Run comem as `python -m comem_cli`."""

from comem_cli.app import main

if __name__ == "__main__":
    main()

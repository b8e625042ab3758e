"""Puts a dataset on this machine: `python scripts/get_data.py cifar10 --root data`."""

import argparse
import sys

from experiments import data


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Fetch a dataset, prove its checksums and put it in place. Does nothing if it "
        "is there already."
    )
    parser.add_argument("name", choices=data.names(), help="which dataset")
    parser.add_argument("--root", help="folder for the data (default: DATA_DIR, else ./data)")
    arguments = parser.parse_args()
    try:
        data.download(arguments.name, arguments.root)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

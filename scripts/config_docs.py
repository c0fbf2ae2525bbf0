"""Write the configuration reference and the example file from the declared settings."""

from pathlib import Path

from memsvc.config import example, reference

ROOT = Path(__file__).resolve().parent.parent

OUTPUTS = {
    "docs/reference/configuration.md": reference,
    "deploy/memsvc.example.yaml": example,
}


def main() -> None:
    """Write each output whose text changed."""
    for name, text in OUTPUTS.items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text():
            path.write_text(text(), encoding="utf-8")
            print(f"wrote {name}")


if __name__ == "__main__":
    main()

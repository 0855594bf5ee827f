"""Package metadata of RoCELab. Exact versions, transitive ones included, are in constraints.txt."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

REQUIREMENTS = [
    "Jinja2>=3.1",
    "PyYAML>=6.0",
    "matplotlib>=3.6",
    "numpy>=1.24",
    "os-ken>=4.0",
    "pydantic>=2.6",
    "pyroute2>=0.7.12",
    "rich>=13.0",
    "scapy>=2.6",
    "typer>=0.12",
]
TEST_REQUIREMENTS = [
    "hypothesis>=6.80",
    "mypy>=1.10",
    "pytest>=8.0",
    "pytest-timeout>=2.2",
    "pytest-xdist>=3.5",
    "ruff>=0.8",
    "types-PyYAML",
]

setup(
    name="rocelab",
    version="0.1.0",
    description="A packet-level RoCEv2 emulation testbed for AI training fabrics",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="GPL-2.0-only",
    python_requires=">=3.11",
    packages=find_namespace_packages(
        include=["testbed", "testbed.*", "controllers", "controllers.*", "traffic", "traffic.*"]
    ),
    package_data={
        "testbed.asic": ["*.c", "*.h"],
        "testbed.report": ["*.html", "*.j2", "templates/*"],
    },
    install_requires=REQUIREMENTS,
    extras_require={"test": TEST_REQUIREMENTS},
    entry_points={
        "console_scripts": ["rocelab = testbed.cli:main"],
        "pytest11": ["rocelab = testbed.pytest_plugin"],
    },
)

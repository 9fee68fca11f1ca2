"""Packaging. Frameworks, and parts that are heavy or bound to a licence or a cluster, are extras."""

import runpy
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
digest_of = runpy.run_path(str(HERE / "elasticflow" / "process" / "compiled.py"))["sources_digest"]


def native(folder: str, package: str, *, headers: tuple[str, ...] = ()) -> Extension:
    """``_native`` of a package: its C files, without Python's headers. Loaded with ctypes.

    Optional: without a C compiler NumPy and pyzmq give the same bits.
    """
    sources = sorted(f"{folder}/{file.name}" for file in (HERE / folder).glob("*.c"))
    return Extension(
        f"{package}._native",
        sources,
        depends=[f"{folder}/{header}" for header in headers],
        # They may change after this was installed.
        define_macros=[("SOURCES", f'"{digest_of(HERE / folder)}"')],
        extra_compile_args=[
            "-O3",
            "-g0",
            "-ffp-contract=off",  # fused multiply-adds would change bits
            "-fno-math-errno",
            "-fno-trapping-math",
            "-fopenmp-simd",
        ],
        extra_link_args=["-pthread"],
        optional=True,
    )


setup(
    name="elasticflow-trainer",
    version="0.1.0",
    description="Elastic deep-learning training that gives the same model bit for bit, whatever happens",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=[
        *find_packages(include=["elasticflow", "elasticflow.*"]),
        "elasticflow_kubernetes",
        "elasticflow_ps",
        "elasticflow_slurm",
        "elasticflow_yarn",
        "elasticflow.examples",
    ],
    package_dir={
        "elasticflow.examples": "examples",
        "elasticflow_kubernetes": "kubernetes/elasticflow_kubernetes",
        "elasticflow_ps": "ps/elasticflow_ps",
        "elasticflow_slurm": "slurm/elasticflow_slurm",
        "elasticflow_yarn": "yarn/elasticflow_yarn",
    },
    ext_modules=[
        native("ps/elasticflow_ps", "elasticflow_ps", headers=("vectors.h",)),
        native("elasticflow/wire", "elasticflow.wire"),
    ],
    package_data={
        "": ["py.typed"],
        "elasticflow.cli": ["skeletons/*.py"],
        "elasticflow.cli.ui": ["static/*"],
        "elasticflow.examples": ["*/*.py", "*/*.md", "*/*.sh"],
        "elasticflow_yarn": ["*.java"],
    },
    install_requires=[
        "cryptography>=47",  # from then on it decrypts into memory that is there
        "h5py>=3.9",
        "msgspec>=0.18",
        "numpy>=1.24",
        "pyyaml>=6",
        "pyzmq>=25",
        "rich>=13",
        "shtab>=1.7",
        "xxhash>=3.1",
    ],
    extras_require={
        "torch": ["torch>=2.2"],
        "tensorflow": ["tensorflow-cpu>=2.16"],
        "tables": ["pyarrow>=14"],
        "sql": ["duckdb>=1.4", "pyarrow>=14"],
        "delta": ["deltalake>=1", "pyarrow>=14"],
        "hive": ["pyarrow>=17", "pyiceberg[hive]>=0.9"],
        "iceberg": ["pyarrow>=17", "pyiceberg>=0.9"],
        "safetensors": ["safetensors>=0.4"],
        "onnx": ["onnx>=1.16", "onnxscript>=0.1", "tf2onnx>=1.16"],
        "pyslurm": [
            "pyslurm"
        ],  # GPL, and of the very version of the cluster's SLURM; its commands do as well
        "yarn": [
            "hdfs>=2.7",
            "setuptools; python_version >= '3.12'",  # Skein imports distutils, which Python has no more
            "skein>=0.8.2",
        ],
        # From 37 on it wants a python-dateutil that botocore, of s3, does not take.
        "kubernetes": ["kubernetes>=31,<37"],
        "s3": ["s3fs>=2025.7"],
        "gcs": ["gcsfs>=2025.7"],
        "azure": ["adlfs>=2025.8"],
        "tensorboard": ["tensorboardX>=2.6"],
        "mlflow": ["mlflow-skinny>=2.14"],
        "wandb": ["wandb>=0.19"],
        "sweep": ["optuna>=4"],
        "metrics": ["prometheus-client>=0.20"],
        "gpu": ["nvidia-ml-py>=12.535"],  # what GPUs tell of themselves, in status and report
        "serving": [
            "httptools>=0.6",
            "prometheus-client>=0.20",
            "pyarrow>=14",
            "starlette>=0.37",
            "uvicorn>=0.30",
            "uvloop>=0.18",
        ],
        "trackers": ["mlflow-skinny>=2.14", "tensorboardX>=2.6", "wandb>=0.19"],
        "adapters": ["accelerate>=1.1", "lightning>=2.4", "transformers>=5"],
        "examples": ["gymnasium>=1", "scikit-learn>=1.3"],
        "bench": ["matplotlib>=3.5", "scipy>=1.9"],
        "test": [
            "duckdb>=1.4",
            "greenlet>=3",
            "hypothesis>=6.90",
            "import-linter>=2",
            "moto[server]>=5.1",  # speaks S3
            "mypy>=1.8",
            "onnxruntime>=1.17",
            "optuna>=4",
            "pandas>=2.2",
            "pytest>=8,<9.2",  # from 9.2 on pytest-xdist 3.8 does not keep the tests of a cluster together
            "pytest-instafail>=0.5",  # what failed is told at once, by a run that is ended from outside, too
            "pytest-timeout>=2.2",
            "pytest-xdist>=3.5",
            "ruff>=0.5",
            "selenium>=4.20",  # a browser's hand, where there is a chromium
            "torchmetrics>=1.2",
            "types-PyYAML",
        ],
    },
    data_files=[("share/man/man1", ["docs/elasticflow.1"])],
    entry_points={"console_scripts": ["elasticflow = elasticflow.cli:main"]},
)

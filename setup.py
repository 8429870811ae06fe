from setuptools import find_packages, setup

# setup.cfg has no keys for these: the C core, and a package whose name differs from its folder.
setup(
    cffi_modules=["native/build_native.py:ffibuilder"],
    packages=[*find_packages(include=["rmqpy*"]), "rmqpy_migrations"],
    package_dir={"rmqpy_migrations": "migrations"},
)

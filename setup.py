from setuptools import find_packages, setup

# Two keys that setup.cfg cannot carry: the C core, and a package that is not named as its folder.
setup(
    cffi_modules=["native/build_native.py:ffibuilder"],
    packages=[*find_packages(include=["rmqpy*"]), "rmqpy_migrations"],
    package_dir={"rmqpy_migrations": "migrations"},
)

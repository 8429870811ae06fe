from setuptools import find_packages, setup

# setup.cfg has no keys for these: the C core, and a package whose name differs from its folder.
# Spark finds the module pyspark_rocketmq by its name.
setup(
    cffi_modules=["native/build_native.py:ffibuilder"],
    packages=[*find_packages(include=["rmqpy*"]), "rmqpy_migrations"],
    py_modules=["pyspark_rocketmq"],
    package_dir={"rmqpy_migrations": "migrations"},
)

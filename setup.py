from setuptools import setup  # cffi_modules is the one key that setup.cfg cannot carry

setup(cffi_modules=["native/build_native.py:ffibuilder"])

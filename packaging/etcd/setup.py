"""A wheel for any Python on this platform: it holds a program, no extension."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class WithProgram(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"bdist_wheel": PlatformWheel}, distclass=WithProgram)

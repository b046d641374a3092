"""A plugin of pytest: what a test failed with is printed when it has, not after the last test."""

import pytest


class Printer:
    """Prints failures."""

    def __init__(self, config: pytest.Config):
        self.terminal = config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After each phase of a test."""
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.write_line(report.longreprtext)


def pytest_sessionstart(session: pytest.Session) -> None:
    """When the terminal is there."""
    session.config.pluginmanager.register(Printer(session.config))

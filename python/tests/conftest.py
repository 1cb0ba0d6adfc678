"""What all tests of the package share: how long hypothesis looks, and what is at hand."""
import os

import hypothesis

# Quick runs always try the same problems, so that a failure is the fault of the change at hand.
hypothesis.settings.register_profile("quick", max_examples=30, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("long", max_examples=1000, deadline=None, database=None)
hypothesis.settings.load_profile("long" if os.environ.get("SHEAF_TEST_LONG") else "quick")

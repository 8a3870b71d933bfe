import sys

from launcher.runner.runner import main

sys.exit(main())

import faulthandler
import os
import signal

faulthandler.disable()
os.kill(os.getpid(), signal.SIGSEGV)

# `make` alone says what there is. Every target does all the set-up that it needs, and skips what is done.

.PHONY: help demo test bench clean

help:
	@echo "make demo    set up and build everything, then run the node on a photo sequence"
	@echo "make test    set up and build everything, then run every check and test"
	@echo "make bench   measure the CPU backend"
	@echo "make clean   remove what was built (the ROS prefix in .ros/ stays; delete it by hand)"

demo:
	@scripts/demo.bash

test:
	@scripts/test.bash

bench:
	@scripts/bench.bash

clean:
	rm -rf build install log out target

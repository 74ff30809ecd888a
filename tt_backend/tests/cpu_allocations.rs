//! After the first frame the network allocates nothing. Alone in its file: the counter sees the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tt_backend::{Size, cpu::Network, maps::Maps, weights::Weights};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_allocation_after_the_first_frame() {
    let weights = Weights::bundled().unwrap();
    let size = Size::new(96, 128);
    let frame = vec![0.25; size.height * size.width];
    let mut network = Network::new(&weights, size, 3).unwrap();
    let mut maps = Maps::new(size);
    network.forward(&frame, true, &mut maps);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for descriptors in [true, false, true] {
        network.forward(&frame, descriptors, &mut maps);
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
}

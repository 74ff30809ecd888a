//! After the first frame a detection allocates nothing. Alone in its file: the counter sees the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tt_backend::{BackendChoice, Detections, Detector, Options, Params, Plane, Postprocess, Size};

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
    let network = Size::new(96, 128);
    let options = Options {
        backend: BackendChoice::Cpu,
        weights: Some("bundled".into()),
        threads: 3,
        network,
        ..Options::default()
    };
    let mut detector = Detector::open(&options).unwrap();
    // Larger than the network's frame, so that it is resized, and with corners, so that there are keypoints.
    let size = Size::new(150, 230);
    let samples: Vec<u8> =
        (0..150 * 230).map(|i| if (i / 230 / 16 + i % 230 / 16) % 2 == 0 { 40 } else { 200 }).collect();
    let plane = Plane::contiguous(&samples, size).unwrap();
    let mut found = Detections::default();
    let cases =
        [Postprocess::Package, Postprocess::Upstream].map(|postprocess| Params { postprocess, ..Params::default() });
    for params in &cases {
        detector.detect_into(&plane, params, &mut found).unwrap();
        assert!(!found.is_empty());
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for params in &cases {
        detector.detect_into(&plane, params, &mut found).unwrap();
        detector.detect_into(&plane, &Params { return_descriptors: false, ..params.clone() }, &mut found).unwrap();
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
}

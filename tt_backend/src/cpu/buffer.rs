//! Memory that kernels on several threads work on.

use std::marker::PhantomData;

/// Floats of one cache line.
pub(super) const LINE: usize = 16;

/// Zeroed values that start on a cache line.
#[derive(Debug)]
pub(super) struct Buffer {
    values: Vec<f32>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub(super) fn new(len: usize) -> Self {
        let values = vec![0.0; len + LINE];
        // `align_offset` may refuse in theory; then the kernels are slower, not wrong.
        let start = values.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        Self { values, start, len }
    }

    pub(super) fn as_slice(&self) -> &[f32] {
        &self.values[self.start..self.start + self.len]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.values[self.start..self.start + self.len]
    }
}

/// A slice that several threads write at the same time, each its own part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared<'a> {
    start: *mut f32,
    len: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: the only access is through `at`, whose callers promise that no two threads touch the same values.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(super) fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Pointer to value `index`, of which `count` values from there on will be written.
    ///
    /// # Safety
    ///
    /// No other thread may read or write these values until the work is over.
    ///
    /// # Panics
    ///
    /// When they are not all within the slice.
    #[inline(always)]
    pub(super) unsafe fn at(&self, index: usize, count: usize) -> *mut f32 {
        assert!(index <= self.len && count <= self.len - index, "write outside of a map");
        // SAFETY: within the slice, as just asserted.
        unsafe { self.start.add(index) }
    }

    /// Address of value `index`, for prefetching only.
    #[inline(always)]
    pub(super) fn address(&self, index: usize) -> *const f32 {
        self.start.wrapping_add(index)
    }
}

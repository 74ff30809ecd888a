//! The vector instructions the kernels are written in, and the choice between them at run time.
//!
//! Every kernel is written once, generic over [`Simd`], and runs on whichever of the three instruction sets
//! [`InstructionSet::detect`] found. A value of `Avx2` or `Avx512` exists only on a machine that has the instructions,
//! which is what makes the arithmetic below safe to call.
//!
//! The tests run every set that the machine has, and on all machines the same source in AVX-512's shape (16 lanes, blocks
//! of 12 rows) in plain Rust.

/// A vector of `f32` lanes and its arithmetic.
///
/// All methods are inlined into the kernel that uses them; a kernel is entered through [`InstructionSet::run`] only, so
/// that it is compiled with the instruction set's features.
pub(crate) trait Simd: Copy {
    /// The vector.
    type V: Copy;
    /// Values in a vector.
    const LANES: usize;
    /// Rows of the matrix product's register block: `2 * ROWS` accumulators, two columns and one broadcast value fill
    /// the registers.
    const ROWS: usize;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the machine can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once where the machine can.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of each lane; `b` where one of them is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Asks for the cache line at `at`, which need not be valid, in the first-level cache.
    fn prefetch(self, at: *const f32);
    /// [`prefetch`](Self::prefetch) to the second-level cache.
    fn prefetch_far(self, at: *const f32);
    /// `2^n` for lanes `1.5 * 2^23 + n` with `n` an integer from -126 to 127.
    fn exp2_of_shifted(self, a: Self::V) -> Self::V;

    /// `LANES` values from memory, at any alignment.
    ///
    /// # Safety
    ///
    /// `from` must be valid for reading `LANES` values.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// `LANES` values to memory, at any alignment.
    ///
    /// # Safety
    ///
    /// `to` must be valid for writing `LANES` values.
    unsafe fn store(self, to: *mut f32, v: Self::V);
}

/// Added to a number of magnitude below 2^22, leaves its nearest integer in the low bits of the sum.
pub(super) const ROUND: f32 = 12_582_912.0;

/// `e^x` for `x <= 0`, to about one unit in the last place; below -87 it stays at `e^-87`.
///
/// Range reduction by two-part ln 2 and the degree-5 polynomial of Cephes' `expf`.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(s.splat(-87.0), x);
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    let r = s.fnma(n, s.splat(0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = s.fma(p, r, s.splat(c));
    }
    let p = s.fma(p, s.mul(r, r), s.add(r, s.splat(1.0)));
    s.mul(p, s.exp2_of_shifted(shifted))
}

/// Work that is written once for every instruction set.
///
/// Implementations of `run` are `#[inline(always)]`, and so is everything they call that computes on vectors: only then
/// is it compiled with the features of the instruction set.
pub(super) trait Kernel {
    /// Does the work with the instructions of `s`.
    fn run<S: Simd>(self, s: S);
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionSet(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    /// Plain Rust on arrays of four values, which the compiler turns into the vector instructions that every machine of
    /// the target has (SSE2, NEON).
    Portable(Portable<4, 6>),
    /// The portable code in the shape of AVX-512, which is thereby tested on machines without it.
    #[cfg(test)]
    Wide(Portable<16, 12>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// The same expression for the `Simd` value in any variant.
macro_rules! with_simd {
    ($set:expr, $s:ident => $value:expr) => {
        match $set.0 {
            Set::Portable($s) => $value,
            #[cfg(test)]
            Set::Wide($s) => $value,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2($s) => $value,
            #[cfg(target_arch = "x86_64")]
            Set::Avx512($s) => $value,
        }
    };
}

impl InstructionSet {
    /// Plain Rust, on any machine.
    pub const PORTABLE: Self = Self(Set::Portable(Portable));

    #[cfg(test)]
    pub(super) const WIDE: Self = Self(Set::Wide(Portable));

    /// The best set of this machine.
    pub fn detect() -> Self {
        Self::available().last().unwrap_or(Self::PORTABLE)
    }

    /// All sets of this machine, the slowest first: [`PORTABLE`](Self::PORTABLE), then AVX2 with FMA (8 lanes, 16
    /// registers) and AVX-512F (16 lanes, 32 registers) where the processor has them.
    pub fn available() -> impl Iterator<Item = Self> {
        let portable = Some(Self::PORTABLE);
        #[cfg(target_arch = "x86_64")]
        let sets =
            [portable, Avx2::detect().map(|s| Self(Set::Avx2(s))), Avx512::detect().map(|s| Self(Set::Avx512(s)))];
        #[cfg(not(target_arch = "x86_64"))]
        let sets = [portable];
        sets.into_iter().flatten()
    }

    /// The name in reports: `portable`, `avx2` or `avx512`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Portable(_) => "portable",
            #[cfg(test)]
            Set::Wide(_) => "wide",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(_) => "avx512",
        }
    }

    /// Values in a vector.
    pub(super) fn lanes(self) -> usize {
        fn lanes<S: Simd>(_: S) -> usize {
            S::LANES
        }
        with_simd!(self, s => lanes(s))
    }

    /// Runs a kernel, compiled for this instruction set.
    pub(super) fn run(self, kernel: impl Kernel) {
        match self.0 {
            Set::Portable(s) => kernel.run(s),
            #[cfg(test)]
            Set::Wide(s) => kernel.run(s),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value of `Avx2` is made only after its features were detected.
            Set::Avx2(s) => unsafe { run_avx2(s, kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value of `Avx512` is made only after its features were detected.
            Set::Avx512(s) => unsafe { run_avx512(s, kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2(s: Avx2, kernel: impl Kernel) {
    kernel.run(s);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn run_avx512(s: Avx512, kernel: impl Kernel) {
    kernel.run(s);
}

/// Arrays of `LANES` values and register blocks of `ROWS` rows, in plain Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Portable<const LANES: usize, const ROWS: usize>;

/// True where a fused multiply-add is an instruction; elsewhere `mul_add` would be a slow library call.
const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// One array operation, value by value.
macro_rules! lanewise {
    (|$($name:ident),+| $value:expr) => {{
        let mut out = [0.0f32; LANES];
        for (lane, out) in out.iter_mut().enumerate() {
            $(let $name = $name[lane];)+
            *out = $value;
        }
        out
    }};
}

impl<const LANES: usize, const ROWS: usize> Simd for Portable<LANES, ROWS> {
    type V = [f32; LANES];
    const LANES: usize = LANES;
    const ROWS: usize = ROWS;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(|a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(|a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(|a, b| a * b)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        lanewise!(|a, b, c| if FUSED { a.mul_add(b, c) } else { a * b + c })
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        lanewise!(|a, b, c| if FUSED { (-a).mul_add(b, c) } else { c - a * b })
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(|a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn prefetch(self, _: *const f32) {}
    #[inline(always)]
    fn prefetch_far(self, _: *const f32) {}
    #[inline(always)]
    fn exp2_of_shifted(self, a: Self::V) -> Self::V {
        lanewise!(|a| f32::from_bits((a.to_bits() << 23).wrapping_add(1.0f32.to_bits())))
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::V {
        // SAFETY: the caller's promise; the array type is read unaligned.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: Self::V) {
        // SAFETY: the caller's promise; the array type is written unaligned.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(v) }
    }
}

#[cfg(target_arch = "x86_64")]
use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::*;

    use super::Simd;

    /// Implements [`Simd`] by intrinsics that differ in their prefix only.
    macro_rules! intrinsics {
        (
            $(#[$doc:meta])* $name:ident, $v:ident, $lanes:literal lanes, $rows:literal rows, features [$($feature:tt)+];
            $splat:ident $add:ident $sub:ident $mul:ident $fma:ident $fnma:ident $max:ident $load:ident $store:ident
            $to_bits:ident $shift:ident $add_bits:ident $splat_bits:ident $from_bits:ident
        ) => {
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(super) struct $name(());

            impl $name {
                /// The proof that this machine has the instructions, if it has.
                pub(super) fn detect() -> Option<Self> {
                    ($(is_x86_feature_detected!($feature))&&+).then_some(Self(()))
                }
            }

            // SAFETY of every block below: `self` exists, so the features were detected; loads and stores have the
            // caller's promise about the pointer and no need of alignment.
            #[allow(clippy::undocumented_unsafe_blocks)]
            impl Simd for $name {
                type V = $v;
                const LANES: usize = $lanes;
                const ROWS: usize = $rows;

                #[inline(always)]
                fn splat(self, x: f32) -> $v {
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                fn add(self, a: $v, b: $v) -> $v {
                    unsafe { $add(a, b) }
                }
                #[inline(always)]
                fn sub(self, a: $v, b: $v) -> $v {
                    unsafe { $sub(a, b) }
                }
                #[inline(always)]
                fn mul(self, a: $v, b: $v) -> $v {
                    unsafe { $mul(a, b) }
                }
                #[inline(always)]
                fn fma(self, a: $v, b: $v, c: $v) -> $v {
                    unsafe { $fma(a, b, c) }
                }
                #[inline(always)]
                fn fnma(self, a: $v, b: $v, c: $v) -> $v {
                    unsafe { $fnma(a, b, c) }
                }
                #[inline(always)]
                fn max(self, a: $v, b: $v) -> $v {
                    unsafe { $max(a, b) }
                }
                #[inline(always)]
                fn prefetch(self, at: *const f32) {
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
                }
                #[inline(always)]
                fn prefetch_far(self, at: *const f32) {
                    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
                }
                #[inline(always)]
                fn exp2_of_shifted(self, a: $v) -> $v {
                    unsafe {
                        let one = $splat_bits(1.0f32.to_bits() as i32);
                        $from_bits($add_bits($shift::<23>($to_bits(a)), one))
                    }
                }
                #[inline(always)]
                unsafe fn load(self, from: *const f32) -> $v {
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut f32, v: $v) {
                    unsafe { $store(to, v) }
                }
            }
        };
    }

    intrinsics! {
        /// Proof of AVX2 and FMA.
        Avx2, __m256, 8 lanes, 6 rows, features ["avx2" "fma"];
        _mm256_set1_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_fmadd_ps _mm256_fnmadd_ps _mm256_max_ps
        _mm256_loadu_ps _mm256_storeu_ps
        _mm256_castps_si256 _mm256_slli_epi32 _mm256_add_epi32 _mm256_set1_epi32 _mm256_castsi256_ps
    }

    intrinsics! {
        /// Proof of AVX-512F.
        Avx512, __m512, 16 lanes, 12 rows, features ["avx512f" "avx2" "fma"];
        _mm512_set1_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_fmadd_ps _mm512_fnmadd_ps _mm512_max_ps
        _mm512_loadu_ps _mm512_storeu_ps
        _mm512_castps_si512 _mm512_slli_epi32 _mm512_add_epi32 _mm512_set1_epi32 _mm512_castsi512_ps
    }
}

//! Plain loops, compiled twice.

/// Runs `work`, compiled for AVX2 where the machine has it: the baseline of x86-64 has vectors of four floats and no
/// 32-bit multiplication in them. What `work` calls must be inlined into it to profit. The results do not depend on
/// it: fused multiplication, which rounds once where two operations round twice, is not turned on.
#[inline(always)]
pub(crate) fn best_code<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2<T>(work: impl FnOnce() -> T) -> T {
            work()
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2, the only thing that the function asks for.
            return unsafe { with_avx2(work) };
        }
    }
    work()
}

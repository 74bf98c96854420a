# What the tests need of llama.cpp, compiled fast: the library without the code of its tools, as a few large files
# without optimization. Its 158 models include the same headers, and only build graphs.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "" FORCE)
function(compile_together)
    if(TARGET llama)
        set_target_properties(llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 40)
        target_compile_options(llama PRIVATE -O0)
    endif()
endfunction()
cmake_language(DEFER CALL compile_together)

import{a,b,c}from"./chunk-CGB2QLBP.js";import"./chunk-EZUXWKYW.js";import"./chunk-SVPYO5R6.js";import"./chunk-FCW5HFXB.js";import"./chunk-3RGSMFYW.js";export{c as Heads,b as Train,a as joined};

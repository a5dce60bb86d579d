import{a,b,c}from"./chunk-7DW4KXMX.js";import"./chunk-QHMACM25.js";import"./chunk-SVPYO5R6.js";import"./chunk-VUZP575R.js";import"./chunk-7XCORO6T.js";export{c as Heads,b as Train,a as joined};
